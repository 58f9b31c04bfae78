mod load;
mod sampler;
mod usl;
