//! Between the dialects: `<client>_<provider>`, and the stream twin of each.

pub mod anthropic_openai_stream;
mod blocks;
pub mod openai_anthropic_stream;
