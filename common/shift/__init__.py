"""Does a site look like the federation? Terms of a site, the pooled reference, and the comparison."""
