"""Pages and reports for people: inspections of data sets, pages of runs, and pages that follow a training."""
