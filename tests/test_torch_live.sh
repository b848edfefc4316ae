#!/usr/bin/env bash
# ctest: PROCESSORS all TIMEOUT 1800 LABELS slow
# Compares our programs with PyTorch; tools/reference/live.py lists the parts. Takes the first Python with torch,
# torchvision and safetensors: $DDP_PYTHON, build/venv (which ./ddp bench makes) or python3. $DDP_CIFAR10 may name
# CIFAR-10's folder or archive; without it, the images are Fashion-MNIST.
set -u
can_torch() { "$1" -c 'import torch, torchvision, safetensors, numpy' 2>/dev/null; }

for python in ${DDP_PYTHON:+"$DDP_PYTHON"} "$SRC/build/venv/bin/python" python3; do
    if can_torch "$python"; then
        cd "$TMP" || exit 1
        export PYTHONDONTWRITEBYTECODE=1
        exec "$python" -W ignore "$SRC/tools/reference/live.py" "$BUILD" "$TMP"
    fi
done
echo "SKIPPED: NOTHING WAS COMPARED WITH PYTORCH: no python here has torch, torchvision and safetensors"
echo "hint: ./ddp bench installs them in build/venv; or set DDP_PYTHON to a Python that has them"
exit 77
