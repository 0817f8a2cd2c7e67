"""The gRPC face of the broker, both sides of it. Nothing else imports its generated modules."""
