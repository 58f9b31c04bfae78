mod reader;
mod sim;
mod world;
