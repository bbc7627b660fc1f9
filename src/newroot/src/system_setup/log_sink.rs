//! Callback that receives log lines.

pub(crate) type LogSink<'a> = &'a (dyn Fn(&str) + Sync);
