"""What a run is made of around its two loops: its plan and folder, what is kept of it and how it goes on."""
