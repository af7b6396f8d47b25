//! What every measurement shares: words from a seed ([`random`]), YCSB's popularity of
//! keys ([`zipf`]), medians and how far runs lie apart
//! ([`statistics`]), tables as CSV and lines as SVG ([`figure`]).

pub mod figure;
pub mod random;
pub mod statistics;
pub mod zipf;
