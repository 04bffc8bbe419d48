#!/usr/bin/env bash
# A run as a job of Hugging Face (docs/processes.md): IMAGE=me/dp-prior:cuda REPO=me/mine ./hf_jobs.sh user/data mine.json
# Checkpoints go to a repository of the Hub and come back from there: a further attempt, or this command again, resumes.
set -euo pipefail
data=${1:?usage: hf_jobs.sh DATASET CONFIG.json [OPTIONS of hf jobs run]}
config=${2:?usage: hf_jobs.sh DATASET CONFIG.json [OPTIONS of hf jobs run]}
: "${IMAGE:?the image that the Dockerfile of the repository builds, in a registry}" "${REPO:?user/name for checkpoints}"
exec hf jobs run --name "dp-prior-${REPO##*/}" --flavor "${FLAVOR:-l4x1}" --timeout "${TIMEOUT:-24h}" --attempts 5 \
    --secrets HF_TOKEN --env "CONFIG=$(cat "$config")" --env "REPO=$REPO" --volume "hf://datasets/$data:/data" "${@:3}" \
    "$IMAGE" bash -c '
        printf %s "$CONFIG" > /tmp/config.json
        exec dp-prior train /tmp/config.json --set data.episodes.path=/data --set tracker.data_path=/tmp/run \
            --set "tracker.save=[{\"type\": \"huggingface\", \"repo\": \"$REPO\", \"save_latest\": true}]" \
            --set "tracker.load={\"type\": \"remote\", \"reference\": \"hf://$REPO\"}"'
