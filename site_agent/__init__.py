"""The hospital's agent: trains inside the site and lets only reviewed updates out. Imports `common` only."""
