"""What a comparison of methods means: paired statistics over sites, who gains, and who is left behind."""
