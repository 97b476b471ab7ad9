"""FedMAP on Flower: names of what is installed, nothing else."""
