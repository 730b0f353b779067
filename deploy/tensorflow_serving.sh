#!/usr/bin/env bash
# Untried: gives a folder of SavedModels, such as RUN/export, to TensorFlow Serving.
#   bash deploy/tensorflow_serving.sh RUN/export
#   curl localhost:8501/v1/models/remixer_tf:predict --data '{"inputs": ["a question"]}'
set -euo pipefail
docker run --rm --publish 127.0.0.1:8501:8501 \
  --volume "$(realpath "$1"):/models/remixer_tf:ro" --env MODEL_NAME=remixer_tf \
  tensorflow/serving:latest --enable_batching=true
