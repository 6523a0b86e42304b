"""Applications: the command line, reports, the local web pages, sweeps and audits."""
