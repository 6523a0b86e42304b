"""What people use: the command line, reports, the local pages, sweeps and audits."""
