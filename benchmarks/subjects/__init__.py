"""One file per subject, each with `run(options) -> list[Case]`."""

SUBJECTS = (
    "data_path",
    "frames",
    "streaming",
    "training_step",
    "image_step",
    "unet2d_step",
    "image_folder",
    "image_sampling",
    "trainer_overhead",
    "update",
    "limits",
    "sampling",
    "exported",
    "rollouts",
    "saving",
    "start_up",
    "heap",
    "waiting",
    "serving",
)
