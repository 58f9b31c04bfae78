mod load;
mod sampler;
mod targets;
mod usl;
