"""Cone programs, their parametrisation, and the conversion of user problems into them."""
