"""Diffusion: schedules, objectives, weightings, timesteps, samplers and the process built from them, on torch alone."""
