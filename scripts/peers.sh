#!/usr/bin/env bash
# Put other libraries' policies (LeRobot, Stanford) and image models (improved-diffusion, lucidrains) into a folder, for
# comparisons with ours:
#
#     scripts/peers.sh /tmp/peers
#     DP_PRIOR_PEERS=/tmp/peers python -m pytest -m slow tests/benchmarks/test_peers.py tests/published/test_peers.py
#     DP_PRIOR_PEERS=/tmp/peers python -m pytest tests/benchmarks/test_state_peers.py
#     DP_PRIOR_PEERS=/tmp/peers python -m pytest tests/benchmarks/test_image_peers.py
#     DP_PRIOR_PEERS=/tmp/peers python -m benchmarks image_step
#     DP_PRIOR_PEERS=/tmp/peers python -m benchmarks --threads 1 unet2d_step image_folder image_sampling
#     DP_PRIOR_PEERS=/tmp/peers python -m benchmarks.study --group peers
#
# Nothing enters the project's own environment: the packages come without their dependencies, torch is the project's.
# benchmarks/peers.py and benchmarks/image_peers.py import them from that folder.
set -euo pipefail
folder=${1:?usage: scripts/peers.sh FOLDER}
pip install --quiet --no-deps --target "$folder/packages" \
    lerobot==0.4.4 robomimic==0.2.0 torchvision==0.28.0 \
    einops draccus mergedeep pyyaml-include==1.4.1 typing-inspect mypy_extensions toml jsonlines \
    datasets==4.1.1 multiprocess dill xxhash pandas python-dateutil pytz six termcolor \
    pyserial imageio deepdiff cachebox orderly-set tensorboardX omegaconf antlr4-python3-runtime==4.9.3 \
    denoising-diffusion-pytorch==2.3.4 ema-pytorch==0.8.3
git clone --quiet https://github.com/real-stanford/diffusion_policy "$folder/diffusion_policy"
git -C "$folder/diffusion_policy" checkout --quiet 5ba07ac6661db573af695b419a7947ecb704690f
git clone --quiet https://github.com/openai/improved-diffusion "$folder/improved_diffusion"
git -C "$folder/improved_diffusion" checkout --quiet 1bc7bbbdc414d83d4abf2ad8cc1446dc36c4e4d5
