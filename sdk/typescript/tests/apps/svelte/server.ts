// Renders the application on a server.
import { render as renderComponent } from 'svelte/server';
import { millrace } from '@millrace/client';
import '../channels.js';
import App from './App.svelte';

export const render = async (url: string): Promise<string> => (await renderComponent(App, { props: { client: millrace(url) } })).body;
