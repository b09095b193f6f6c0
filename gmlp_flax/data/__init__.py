"""Records to host batches: sources, tokenizer, images, and the pipeline that turns (seed, step) into a batch.

Nothing here knows of models or devices, and nothing imports jax. Import the modules by name:

    text_sources     documents from text files, folders and JSON lines
    image_sources    image folders and tar files, as random-access sources
    embedded         a small text and a small image set that need no download
    tokenizer        train, load, encode, decode
    text             documents -> token ids -> fixed-length windows
    images           decode, and the views used for training and evaluation
    pipeline         source -> this host's batches
    cache            files that are built once, checked, and replaced atomically
"""
