"""What a problem is: cone programs, their parametrisation, and how user problems become them."""
