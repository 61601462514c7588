//! Routes.
