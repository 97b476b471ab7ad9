"""FedMAP inside other people's runtimes: thin layers over the same stages, none of which import these."""
