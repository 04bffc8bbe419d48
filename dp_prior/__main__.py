"""`python -m dp_prior`: the command `dp-prior`, which `accelerate launch -m dp_prior` starts on every rank."""

from dp_prior_command import main

if __name__ == "__main__":
    main()
