"""Data that ship with mcit: four vision-language tasks, a small pretrained ViLT, and shapes."""
