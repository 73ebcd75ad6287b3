"""Jobs in processes of their own, under limits, on this machine or on a Ray cluster."""
