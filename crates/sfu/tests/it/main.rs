mod congestion;
mod rfc8867;
