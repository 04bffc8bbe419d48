#!/usr/bin/env bash
# Make the pages of docs/examples again, in about a quarter of an hour on two cores. data/g1_yellow_bottle is Yifan
# Tian's data set in LeRobot's format (docs/pages.md says where it is published). Runs that are there are not repeated.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh pusht,plots,video,lerobot
main_job=configs/policy/pusht_state.json
dp-prior inspect data/g1_yellow_bottle --html docs/examples/data.html
dp-prior train "$main_job"
films=$(mktemp -d)
mv runs/pusht_state/media/rollout_*.mp4 "$films"    # the page shows the film of the test alone, for its size
dp-prior report runs/pusht_state --html docs/examples/run.html
mv "$films"/rollout_*.mp4 runs/pusht_state/media
dp-prior sweep "$main_job" --vary task.diffusion.objective.type=eps,v,x0 --html docs/examples/comparison.html \
    --set train.samples=120000 --set tracker.data_path=runs/objectives
