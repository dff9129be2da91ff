"""Applications on top of the public interface: a server, Beam pipelines, harness, files, Hub."""
