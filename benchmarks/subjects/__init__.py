"""One file per subject, each with `run(options) -> list[Case]`."""

SUBJECTS = (
    "data_path",
    "training_step",
    "image_step",
    "trainer_overhead",
    "update",
    "sampling",
    "saving",
    "start_up",
    "heap",
)
