// Renders the application on a server.
import { createSSRApp } from 'vue';
import { renderToString } from 'vue/server-renderer';
import { millrace } from '@millrace/client';
import { MillracePlugin } from '@millrace/client/vue';
import '../channels.js';
import App from './App.vue';

export const render = (url: string): Promise<string> => renderToString(createSSRApp(App).use(MillracePlugin, millrace(url)));
