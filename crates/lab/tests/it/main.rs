mod sampler;
mod usl;
