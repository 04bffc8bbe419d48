"""Writers of episode formats, which conversion alone uses; they join by entry points `dp_prior.writers`."""
