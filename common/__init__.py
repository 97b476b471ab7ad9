"""What more than one FedMAP service needs: the algorithm, study plans, models, data checks, metrics."""
