"""The paper's experiments against every system it names: `ffo lab`."""
