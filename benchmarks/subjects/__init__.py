"""One file per subject, each with `run(options) -> list[Case]`."""

SUBJECTS = (
    "data_path",
    "frames",
    "training_step",
    "image_step",
    "trainer_overhead",
    "update",
    "sampling",
    "exported",
    "rollouts",
    "saving",
    "start_up",
    "heap",
    "serving",
)
