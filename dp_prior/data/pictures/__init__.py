"""Pictures, with or without labels. A source reads one format per module; `images` is the data set of a task."""
