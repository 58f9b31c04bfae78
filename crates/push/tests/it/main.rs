mod answers;
mod restart;
mod service;
