//! A project's own credentials, encrypted at rest.
