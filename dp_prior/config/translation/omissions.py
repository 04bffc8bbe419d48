"""What the other libraries have and is left out here on purpose, with the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Omission:
    """A feature that is left out.

    Attributes:
        feature: in their words.
        whose: the libraries that have it.
        reason: why, and what takes its place.
    """

    feature: str
    whose: str
    reason: str


OMISSIONS = (
    Omission(
        "Run directories and names that hold the time",
        "Diffusion Policy, LeRobot",
        "A run goes on by the same command, exactly where it was killed. With the time in its name, that command would "
        "start another run. `dp-prior sweep` names runs by their values; a new run gets a new `tracker.data_path`.",
    ),
    Omission(
        "Overwriting a run, `overwrite_data_path`",
        "DALLE2-pytorch, openpi",
        "Nothing that a user made is deleted by a setting, which would stay in a file and act again. Delete by hand.",
    ),
    Omission(
        "Pickled checkpoints and snapshots of whole objects",
        "Diffusion Policy, all that use `torch.save`",
        "Reading a pickle runs code. Checkpoints are safetensors and JSON; docs/import.md converts theirs.",
    ),
    Omission(
        "Classes and formulas in a configuration: `_target_`, `${eval:...}`",
        "Diffusion Policy",
        "No file names code. Parts have a `type`, parts of your own come by `--import`; `extends` and `--set` compose.",
    ),
    Omission(
        "`device` of training",
        "Diffusion Policy, LeRobot",
        "It belongs to the machine, not to the run, which resumes elsewhere. CUDA_VISIBLE_DEVICES and the options of "
        "`accelerate launch` choose.",
    ),
    Omission(
        "`num_workers`, `pin_memory`, `prefetch_factor`",
        "Diffusion Policy, LeRobot, openpi",
        "Data are decoded once and batches are gathered from memory or a file; there are no workers to set.",
    ),
    Omission(
        "Synchronous saves",
        "Diffusion Policy (`use_thread`)",
        "A save is one copy on the training thread and the rest behind it; a failed save is counted and reported "
        "either way, so a second path would only be less tested.",
    ),
    Omission(
        "`max_train_steps`, debug mode",
        "Diffusion Policy",
        "`--check` runs every part once before training; `train.steps` shortens a run.",
    ),
    Omission(
        "Any optimizer of torch, by its class",
        "Diffusion Policy",
        "AdamW and Muon are here, with rates and decays by part. Another one is a part of yours "
        "([extending.md](extending.md)), so that checkpoints hold its moments and `--check` tries it.",
    ),
    Omission(
        "Adding and dropping episodes of a replay buffer",
        "Diffusion Policy",
        "Data sets are read, never changed: a run knows its data by a hash. `dp-prior convert` writes chosen episodes "
        "as a new set, `data.choice` leaves some out. Jpeg2k is read, with `--import` ([data.md](data.md)).",
    ),
    Omission(
        "`fps` and `crf` of films, `legacy_test`",
        "Diffusion Policy",
        "A film has the rate of its environment and one quality, so that films of two runs compare. gym-pusht always "
        "starts as `legacy_test` does.",
    ),
    Omission(
        "A run without a budget",
        "improved-diffusion",
        "Learning rates, cadences and the time left follow from the budget. Choose a large one, stop when you like: "
        "the checkpoint of the last step stays, and a larger budget goes on.",
    ),
    Omission(
        "Averages updated every few steps, `update_every`",
        "lucidrains",
        "An average is updated every step, as part of it, at no measurable cost. The decay is the same when taken to "
        "the power 1 / `update_every`, which `translate` does.",
    ),
    Omission(
        "Predicting only the executed actions, `pred_action_steps_only`",
        "Diffusion Policy",
        "The whole chunk costs nothing more, and acting in real time needs what follows the executed actions.",
    ),
    Omission(
        "Hidden keypoints, random visible steps",
        "Diffusion Policy",
        "None of its published settings uses them. `task.cond_dropout` drops observations, `data.previous_action` and "
        "`task.prefix` show past actions.",
    ),
    Omission(
        "Runners of block push and kitchen",
        "Diffusion Policy",
        "Their simulators pin old versions of MuJoCo and gym. A gymnasium environment of yours is one record "
        "([environments.md](environments.md)).",
    ),
    Omission(
        "Drivers of robots and cameras",
        "Diffusion Policy, LeRobot",
        "`dp-prior serve` and a client without torch stand beside any driver ([robot.md](robot.md)).",
    ),
    Omission(
        "`time_difference`, latents as self-conditioning, continuous time",
        "rin-pytorch",
        "Samplers visit a table of timesteps; shifting the time of the network was a fix for few steps, which the "
        "second-order samplers do better. Latents exist in one network only.",
    ),
    Omission(
        "The noisy image normalised where `scale` is below 1",
        "rin-pytorch",
        "Levels are divided by their norm instead, so that signal and noise keep unit variance by construction.",
    ),
    Omission(
        "Batches split over ranks, `split_batches`",
        "lucidrains",
        "`data.batch_size` is per rank, as everywhere here, so that more ranks never make a batch of 0.",
    ),
    Omission(
        "fp16 without a GPU",
        "lucidrains, DALLE2-pytorch, improved-diffusion",
        "bf16 runs on CPUs and GPUs and needs no scale of the loss; fp16 is for GPUs that have no bf16.",
    ),
    Omission(
        "Endings of picture files, `exts`; pictures with alpha",
        "lucidrains",
        "All pictures that Pillow reads by the usual endings are found. What is transparent is laid over white, and "
        "`data.channels` is 1 or 3.",
    ),
    Omission(
        "Adapters of OpenAI's CLIP, OpenCLIP, x-clip and CoCa",
        "DALLE2-pytorch",
        "`dp-prior embed` loads models of `transformers`, as which most of these are published. Embeddings of another "
        "one are read as npy or parquet files, or the model is an embedder of yours ([extending.md](extending.md)).",
    ),
    Omission(
        "CLIP inside the trainer",
        "DALLE2-pytorch",
        "Embeddings are written once by `dp-prior embed` and read by every epoch ([prior.md](prior.md)).",
    ),
    Omission(
        "Start values in a configuration: epoch, samples seen, best loss",
        "DALLE2-pytorch",
        "They are part of a checkpoint, where they cannot contradict the weights.",
    ),
    Omission(
        "A default for `--config_file`",
        "DALLE2-pytorch",
        "A command that trains something unnamed hides a mistyped option.",
    ),
    Omission(
        "The loss scale as a setting",
        "improved-diffusion",
        "torch's GradScaler finds it, its state is in checkpoints; bf16 needs none.",
    ),
    Omission(
        "Logs written to a bucket directly, `OPENAI_LOGDIR`",
        "improved-diffusion",
        "A log that is appended at every step needs a file system. Savers upload checkpoints and the page of the run.",
    ),
    Omission(
        "Vision-language models, adapters (LoRA), FSDP",
        "openpi, LeRobot",
        "Policies here are up to some hundred million parameters and fit one GPU with their optimizer.",
    ),
)
