#!/bin/bash
# Vast.ai's ssh mode replaces the image's entrypoint: this starts it. -s: tini is not process 1 here.
# Tokens (HF_TOKEN ...) belong into the variables of your account, not into a template.
mkdir -p /workspace && cd /workspace || exit
exec tini -s -g -- roundhouse up
