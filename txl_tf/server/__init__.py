"""A server of SavedModels over HTTP and gRPC, with generation in sessions."""
