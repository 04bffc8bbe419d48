"""Diffusion: schedules, objectives, weightings, timesteps, samplers, and the process they make. Pure maths on torch."""
