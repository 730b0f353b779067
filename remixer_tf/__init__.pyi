from remixer_tf import decoding as decoding
from remixer_tf import layers as layers
from remixer_tf import models as models
from remixer_tf import optimizers as optimizers
from remixer_tf import testing as testing
from remixer_tf.loaded.run import LoadedRun as LoadedRun
from remixer_tf.loading import create as create
from remixer_tf.loading import load as load
from remixer_tf.named_models import presets as presets
from remixer_tf.objectives.losses import CrossEntropy as CrossEntropy
from remixer_tf.optimizers import Adafactor as Adafactor
from remixer_tf.run import Run as Run

__version__: str
