"""Applications on top of the public interface: a server, Beam pipelines, pages, harness."""
