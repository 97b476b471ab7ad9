"""FedMAP as a Flower app: a strategy, a client app, and one command to run them."""
