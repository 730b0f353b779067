"""Packaging of remixer_tf.

Two folders of the repository live inside the installed package:
`tasks/` is `remixer_tf.tasks`, and `gin/` travels as data in `remixer_tf/gin`. In a
checkout `remixer_tf/__init__.py` finds them next to the package.
`gin/` must never hold an `__init__.py`: it would hide the gin library.

Two libraries need a step of their own, `pip install --no-deps`, which install.sh runs;
what they really use is declared below.
- t5, for T5's tasks: its metadata asks for tfds-nightly and seqio-nightly, which
  overwrite tensorflow-datasets and seqio file by file.
- seqio, on Python 3.13 only: it requires editdistance, which has no wheel there and
  would need a compiler. `remixer_tf/edit_distance.py` takes its place.
"""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(
    r'__version__ = "(.+)"', (ROOT / "remixer_tf" / "__init__.py").read_text()
).group(1)


def subpackages(folder):
    """Names `remixer_tf.<folder>[.<subfolder>...]`, one for each folder with files."""
    files = [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.gin")]
    folders = {path.parent.relative_to(ROOT) for path in files}
    return sorted(".".join(["remixer_tf", *path.parts]) for path in folders)


# `cache`, `infer` and `score` on many machines. The second is for TFRecord.
BEAM = ["apache-beam>=2.77", "google-crc32c>=1.5"]
# Formats of `remixer_tf export`, and lm-evaluation-harness.
LITERT = ["ai-edge-litert>=2.3"]
LM_EVAL = ["lm_eval>=0.4.13"]  # 0.16 GB, without PyTorch
MLFLOW = ["mlflow-skinny>=3"]  # MLflow's client
ONNX = ["onnx>=1.23", "onnxruntime>=1.31", "tf2onnx>=1.17"]
# `remixer_tf serve`, and its clients for tests.
SERVE = ["prometheus-client>=0.23", "starlette>=1.0", "uvicorn>=0.40"]
CLIENTS = ["httpx", "openai>=3", "schemathesis>=4", "tritonclient[http]>=2.60"]
SERVING = ["tensorflow-serving-api>=2.20,<2.22"]  # of tensorflow's own minor version
WANDB = ["wandb>=0.20"]

setup(
    name="remixer_tf",
    version=VERSION,
    description="Remixer, gMLP, MLP-Mixer, sMLP and T5 in Keras, configured by gin",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=[
        *find_packages(include=["remixer_tf", "remixer_tf.*"]),
        *subpackages("tasks"),
        *subpackages("gin"),
    ],
    package_dir={"remixer_tf.tasks": "tasks", "remixer_tf.gin": "gin"},
    package_data={"": ["*.gin"], "remixer_tf": ["*.pyi", "py.typed", "server/page/*"]},
    python_requires=">=3.11,<3.14",
    entry_points={"console_scripts": ["remixer_tf=remixer_tf.__main__:main"]},
    author="The authors of remixer_tf",
    project_urls={
        "Remixer": "https://openreview.net/forum?id=9FHQHJnRtfL",
        "T5": "https://arxiv.org/abs/1910.10683",
        "T5.1.1": "https://arxiv.org/abs/2002.05202",
        "gMLP": "https://arxiv.org/abs/2105.08050",
        "MLP-Mixer": "https://arxiv.org/abs/2105.01601",
        "sMLP": "https://arxiv.org/abs/2203.06850",
    },
    keywords="transformer t5 gmlp mlp-mixer remixer smlp keras tensorflow jax gin",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    install_requires=[
        # tensorflow-text asks for the tensorflow of its own minor version.
        "tensorflow>=2.20,<2.22",
        "tensorflow-text>=2.20,<2.22,!=2.21.0",  # 2.21.0 fails when it is imported.
        "keras>=3.15",
        "jax",  # The other engine; seqio needs it too.
        "orbax-checkpoint>=0.12",  # Its other checkpoints; seqio's flax needs it too.
        "tensorboard",
        "tensorflow-datasets>=4.9",
        "importlib_resources",  # tensorflow-datasets prepares no set without it.
        "seqio==0.0.20; python_version < '3.13'",
        "gin-config>=0.5",
        "matplotlib>=3.9",
        # 0.2.3 needs protobuf 7.36.1, which its metadata do not say and Apache Beam
        # excludes.
        "sentencepiece>=0.2,<0.2.3",
        "protobuf>=6.31.1",  # What generated the modules of TensorFlow's libraries.
        "numpy",
        "packaging",
        "rich",
        # What the formats of published weights need.
        "ml_dtypes",
        "msgpack",
        "safetensors>=0.5",
        "tensorstore",
        # What seqio imports, where it comes without its dependencies.
        "clu",
        "pyglove",
        "rapidfuzz; python_version >= '3.13'",
        # What t5.data and t5.evaluation import.
        "absl-py",
        "babel",
        "editdistance; python_version < '3.13'",
        "immutabledict",
        "rouge-score>=0.1.2",
        "sacrebleu",
        "scikit-learn",
        "scipy",
    ],
    extras_require={
        "dev": [
            "hypothesis",
            "ipykernel",
            "mypy",
            "nbclient",
            "playwright",
            "pre-commit",
            "pytest",
            "pytest-xdist",
            "rapidfuzz",
            "ruff",
            *BEAM,
            *LITERT,
            *LM_EVAL,
            *ONNX,
            *CLIENTS,
            *SERVE,
            *SERVING,
        ],
        "beam": BEAM,
        "docs": ["mkdocs<2", "mkdocs-material", "mkdocstrings[python]"],
        "litert": LITERT,
        "lm_eval": LM_EVAL,
        "mlflow": MLFLOW,
        "onnx": ONNX,
        "serve": SERVE,
        "serving": SERVING,
        "wandb": WANDB,
    },
)
