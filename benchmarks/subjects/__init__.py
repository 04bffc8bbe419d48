"""One file per subject, each with `run(options) -> list[Case]`.

A subject of many minutes also has `parts(options)`, functions that measure its cases, by name: what has been measured
is then shown at once, and is not measured again after an interruption.
"""

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
