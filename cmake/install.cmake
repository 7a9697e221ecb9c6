# Installation: filled in once all libraries stand.
