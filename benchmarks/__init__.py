"""What dp_prior costs, side by side with a baseline written from public libraries alone, in one run on one machine.

`python -m benchmarks` measures everything; a name measures one subject, `--quick` tries that it all still runs.
"""
