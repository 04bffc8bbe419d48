"""Laws of the package. A package of its own, so that no `tests` that another distribution installs is found first."""
