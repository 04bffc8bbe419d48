"""Settings of other libraries: what each is called here, or why it has no counterpart."""
